# The drop-in libraries: what a program for a board is linked with or loads. They know no Python when they are built.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  return()
endif()
find_package(Threads REQUIRED)

set(DROPIN_FLAGS -O2 -Wall -Wextra -Wmissing-prototypes -fno-strict-aliasing)

# One library: add_dropin(NAME HEADER VERSION SPECIAL [exported names])
function(add_dropin name header version special)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/lib${name}.c)
  add_custom_command(
    OUTPUT ${source}
    COMMAND Python::Interpreter ${GENERATE}/build_exports.py ${source} ${header} lib${name} ${version} ${special} ${ARGN}
    DEPENDS ${GENERATE}/build_exports.py ${GENERATE}/declarations.py ${header} ${special}
    VERBATIM)
  set(core ${DROPIN}/native)
  add_library(${name} SHARED ${source} ${core}/gate.c ${core}/python.c ${core}/settings.c ${core}/stack.c)
  get_filename_component(folder ${header} DIRECTORY)
  target_include_directories(${name} PRIVATE ${folder} ${core})
  target_compile_options(${name} PRIVATE ${DROPIN_FLAGS})
  target_link_options(${name} PRIVATE -Wl,-z,nodelete -Wl,-z,now -Wl,--no-undefined)
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(${name} PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden)
  install(TARGETS ${name} LIBRARY DESTINATION anynpu/dropin/lib)
endfunction()

set(RKNN_ABI ${CMAKE_CURRENT_SOURCE_DIR}/src/anynpu/rknn/abi.h)
add_dropin(rknnrt ${RKNN_ABI} "2.3.2 (anynpu)" ${DROPIN}/native/rknn_full.h)
add_dropin(rknnmrt ${RKNN_ABI} "2.3.2 (anynpu)" ${DROPIN}/native/rknn_mini.h
  rknn_create_mem rknn_create_mem2 rknn_create_mem_from_fd rknn_create_mem_from_phys rknn_destroy rknn_destroy_mem rknn_dup_context
  rknn_init rknn_inputs_set rknn_mem_sync rknn_outputs_get rknn_outputs_release rknn_query rknn_run rknn_set_input_shape
  rknn_set_input_shapes rknn_set_internal_mem rknn_set_io_mem rknn_set_weight_mem rknn_wait)

# The board's system files and devices, for `anynpu exec`.
add_library(anynpu_board SHARED ${DROPIN}/native/board.c)
target_compile_options(anynpu_board PRIVATE ${DROPIN_FLAGS})
target_link_options(anynpu_board PRIVATE -Wl,--no-undefined)
target_link_libraries(anynpu_board PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(anynpu_board PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden)
install(TARGETS anynpu_board LIBRARY DESTINATION anynpu/dropin/lib)

# What C and C++ programs include, and how their build finds it.
set(HEADERS rknn_api.h rknn_matmul_api.h rknn_custom_op.h)
list(TRANSFORM HEADERS PREPEND ${CMAKE_CURRENT_BINARY_DIR}/include/)
add_custom_command(
  OUTPUT ${HEADERS}
  COMMAND Python::Interpreter ${GENERATE}/build_headers.py ${CMAKE_CURRENT_BINARY_DIR}/include ${RKNN_ABI}
  DEPENDS ${GENERATE}/build_headers.py ${RKNN_ABI}
  VERBATIM)
add_custom_target(dropin_headers ALL DEPENDS ${HEADERS})
install(FILES ${HEADERS} DESTINATION anynpu/dropin/include)
install(FILES ${DROPIN}/package/rknnrt.pc ${DROPIN}/package/rknnmrt.pc DESTINATION anynpu/dropin/lib/pkgconfig)
install(FILES ${DROPIN}/package/anynpu-config.cmake DESTINATION anynpu/dropin/lib/cmake/anynpu)
install(FILES ${DROPIN}/package/forward-config.cmake DESTINATION anynpu/dropin/lib/cmake RENAME anynpu-config.cmake)
