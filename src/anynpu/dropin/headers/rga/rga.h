/* Under this name programs include parts of im2d; all of it is in one header. */
#ifndef ANYNPU_RGA_H
#define ANYNPU_RGA_H

#include "im2d.h"

#endif
