"""Stands in for the vendor's converter, which EZ RKNN Async's tests make their models with."""
