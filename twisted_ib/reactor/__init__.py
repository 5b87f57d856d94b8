"""The ib reactor: epoll, completion channels and adaptive polling."""
