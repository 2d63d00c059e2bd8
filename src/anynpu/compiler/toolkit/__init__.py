"""What Rockchip's toolkit does to a model, reproduced: quantizer="vendor" and the simulator's arithmetic."""
