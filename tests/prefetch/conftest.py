from prefetch_cases import put_in

__all__ = ["put_in"]
