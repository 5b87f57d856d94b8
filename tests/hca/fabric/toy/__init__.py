"""
A fabric without packets, made of socket pairs: what a new fabric costs, and that it costs no more.
"""
