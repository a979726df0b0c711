"""What learns."""
