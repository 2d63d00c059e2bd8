"""The one operator."""

import torch


def nms(boxes, scores, iou_threshold):
    """Indices of the boxes that stay, the best first."""
    order = scores.argsort(descending=True)
    kept = []
    area = (boxes[:, 2] - boxes[:, 0]).clamp(0) * (boxes[:, 3] - boxes[:, 1]).clamp(0)
    while order.numel():
        first, rest = order[0], order[1:]
        kept.append(first)
        low, high = torch.maximum(boxes[first, :2], boxes[rest, :2]), torch.minimum(boxes[first, 2:], boxes[rest, 2:])
        both = (high - low).clamp(0).prod(1)
        order = rest[both / (area[first] + area[rest] - both) <= iou_threshold]
    return torch.stack(kept) if kept else order
