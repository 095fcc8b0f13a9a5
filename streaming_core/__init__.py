"""Streams the experts of Mixture-of-Experts models through mlx-lm's own model code, exactly."""
