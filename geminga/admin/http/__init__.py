"""HTTP/1.1 on h11, and a router."""
