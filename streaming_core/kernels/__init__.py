"""Custom kernels for the experts of calls with few tokens, and the choice between them and MLX's own."""
