"""What operators and their machines ask a replica, on a listener of its own."""
