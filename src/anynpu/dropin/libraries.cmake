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
  add_library(${name} SHARED ${source} ${core}/gate.c ${core}/python.c ${core}/secure.c ${core}/settings.c ${core}/stack.c)
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

# VIPLite: one table, two names. The two libraries that serve them on a board exist for those who link with them.
set(VIP_ABI ${CMAKE_CURRENT_SOURCE_DIR}/src/anynpu/vip/abi.h)
add_dropin(VIPlite ${VIP_ABI} "1.13.0 (anynpu)" ${DROPIN}/native/vip_calls.h)
add_dropin(NBGlinker ${VIP_ABI} "2.0.3 (anynpu)" ${DROPIN}/native/vip_calls.h)
foreach(name VIPuser VIPhal)
  add_library(${name} SHARED ${DROPIN}/native/vip_helper.c)
  target_compile_definitions(${name} PRIVATE ANYNPU_NAME="lib${name}")
  target_compile_options(${name} PRIVATE ${DROPIN_FLAGS})
  set_target_properties(${name} PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden)
  install(TARGETS ${name} LIBRARY DESTINATION anynpu/dropin/lib)
endforeach()

# libawnn: plain C over the calls of whichever VIPLite there is, here or on a board.
add_library(awnn SHARED ${DROPIN}/native/awnn.c)
target_include_directories(awnn PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src/anynpu/vip)
target_compile_options(awnn PRIVATE ${DROPIN_FLAGS} -ffp-contract=off)
target_link_options(awnn PRIVATE -Wl,--no-undefined)
target_link_libraries(awnn PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)
set_target_properties(awnn PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
install(TARGETS awnn LIBRARY DESTINATION anynpu/dropin/lib)

# librga: pictures by the calls of Rockchip's 2D hardware, on the processor.
add_library(rga SHARED ${DROPIN}/native/rga.c ${DROPIN}/native/rga_memory.c ${DROPIN}/native/rga_cpp.c)
target_include_directories(rga PRIVATE ${DROPIN}/headers/rga ${DROPIN}/native)
target_compile_options(rga PRIVATE ${DROPIN_FLAGS} -ffp-contract=off)
target_link_options(rga PRIVATE -Wl,--no-undefined)
target_link_libraries(rga PRIVATE Threads::Threads)
set_target_properties(rga PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden)
install(TARGETS rga LIBRARY DESTINATION anynpu/dropin/lib)
install(DIRECTORY ${DROPIN}/headers/rga/ DESTINATION anynpu/dropin/include)
install(DIRECTORY ${DROPIN}/headers/rga DESTINATION anynpu/dropin/include)

# The board's system files and devices, for `anynpu exec`.
add_library(anynpu_board SHARED ${DROPIN}/native/board.c)
target_compile_options(anynpu_board PRIVATE ${DROPIN_FLAGS})
target_link_options(anynpu_board PRIVATE -Wl,--no-undefined)
target_link_libraries(anynpu_board PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(anynpu_board PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden)
install(TARGETS anynpu_board LIBRARY DESTINATION anynpu/dropin/lib)

# The plug-in execution provider of ONNX Runtime. It loads the vendor's library when a session is created.
file(GLOB ORT_EP_SOURCES CONFIGURE_DEPENDS ${DROPIN}/ort_ep/*.c)
add_library(anynpu_ep SHARED ${ORT_EP_SOURCES})
target_compile_definitions(anynpu_ep PRIVATE ANYNPU_VERSION="${SKBUILD_PROJECT_VERSION}")
target_compile_options(anynpu_ep PRIVATE ${DROPIN_FLAGS} -ffp-contract=off)
target_link_options(anynpu_ep PRIVATE -Wl,-z,nodelete -Wl,-z,now -Wl,--no-undefined) # unregistering unloads it while sessions may run
target_link_libraries(anynpu_ep PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(anynpu_ep PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden)
install(TARGETS anynpu_ep LIBRARY DESTINATION anynpu/dropin/lib)

# The provider in programs as they are, for `anynpu exec --onnxruntime`.
add_library(anynpu_ort SHARED ${DROPIN}/native/ort_preload.c)
target_include_directories(anynpu_ort PRIVATE ${DROPIN}/ort_ep)
target_compile_options(anynpu_ort PRIVATE ${DROPIN_FLAGS})
target_link_options(anynpu_ort PRIVATE -Wl,--no-undefined)
target_link_libraries(anynpu_ort PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(anynpu_ort PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden)
install(TARGETS anynpu_ort LIBRARY DESTINATION anynpu/dropin/lib)

# The device of the mainline driver, which libanynpu_board opens.
add_dropin(anynpu_accel ${DROPIN}/native/accel.h "1.0.0 (anynpu)" ${DROPIN}/native/accel_calls.h)

# What C and C++ programs include, and how their build finds it.
set(HEADERS rknn_api.h rknn_matmul_api.h rknn_custom_op.h)
list(TRANSFORM HEADERS PREPEND ${CMAKE_CURRENT_BINARY_DIR}/include/)
add_custom_command(
  OUTPUT ${HEADERS}
  COMMAND Python::Interpreter ${GENERATE}/build_headers.py ${CMAKE_CURRENT_BINARY_DIR}/include ${RKNN_ABI}
  DEPENDS ${GENERATE}/build_headers.py ${RKNN_ABI}
  VERBATIM)
set(VIP_HEADERS vip_lite_common.h vip_lite.h awnn_lib.h awnn.h awnn_internal.h)
list(TRANSFORM VIP_HEADERS PREPEND ${CMAKE_CURRENT_BINARY_DIR}/include/)
set(AWNN_ABI ${CMAKE_CURRENT_SOURCE_DIR}/src/anynpu/vip/awnn.h)
add_custom_command(
  OUTPUT ${VIP_HEADERS}
  COMMAND Python::Interpreter ${GENERATE}/build_vip_headers.py ${CMAKE_CURRENT_BINARY_DIR}/include ${VIP_ABI} ${AWNN_ABI}
  DEPENDS ${GENERATE}/build_vip_headers.py ${GENERATE}/build_headers.py ${VIP_ABI} ${AWNN_ABI}
  VERBATIM)
add_custom_target(dropin_headers ALL DEPENDS ${HEADERS} ${VIP_HEADERS})
install(FILES ${HEADERS} ${VIP_HEADERS} ${DROPIN}/headers/Float16.h DESTINATION anynpu/dropin/include)
foreach(name rknnrt rknnmrt rga VIPlite NBGlinker awnn)
  install(FILES ${DROPIN}/package/${name}.pc DESTINATION anynpu/dropin/lib/pkgconfig)
endforeach()
install(FILES ${DROPIN}/package/anynpu-config.cmake DESTINATION anynpu/dropin/lib/cmake/anynpu)
install(FILES ${DROPIN}/package/forward-config.cmake DESTINATION anynpu/dropin/lib/cmake RENAME anynpu-config.cmake)
