class CustomOperatorCalls:
    pass
