# Found where the folder of the libraries itself is the prefix.
include("${CMAKE_CURRENT_LIST_DIR}/anynpu/anynpu-config.cmake")
