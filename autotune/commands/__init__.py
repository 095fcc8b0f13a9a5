"""One module a command, each with `run(args, context) -> exit status`."""
