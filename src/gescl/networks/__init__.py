"""The networks that learn: shipped trunks, external ones, and a net of one trunk with many heads."""
