/* libanynpu_accel: libanynpu_board loads it when a program opens the device, and passes its calls on as they come. */
