/* Under this name programs include parts of im2d; all of it is in one header. */
#ifndef ANYNPU_IM2D_BUFFER_H
#define ANYNPU_IM2D_BUFFER_H

#include "im2d.h"

#endif
