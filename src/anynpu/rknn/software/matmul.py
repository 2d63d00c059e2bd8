class MatmulState:
    device = None


class MatmulCalls:
    pass
