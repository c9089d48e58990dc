"""Which samples of a session's tree are trained on, and how."""
