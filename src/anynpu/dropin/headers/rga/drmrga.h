/* Under this name programs include parts of im2d; all of it is in one header. */
#ifndef ANYNPU_DRMRGA_H
#define ANYNPU_DRMRGA_H

#include "im2d.h"

#endif
