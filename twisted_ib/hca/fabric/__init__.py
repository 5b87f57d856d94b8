"""What carries operations from one HCA to another."""
