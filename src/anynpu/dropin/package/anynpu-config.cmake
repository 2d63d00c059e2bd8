# find_package(anynpu) gives the targets anynpu::rknnrt, anynpu::rknnmrt and anynpu::rga, anynpu::VIPlite, anynpu::NBGlinker and anynpu::awnn (and
# anynpu::VIPuser and anynpu::VIPhal, which have no calls): headers and drop-in library for programs that are built for a board's interface. CMAKE_PREFIX_PATH=$(anynpu lib --path) finds this file.
get_filename_component(_anynpu_folder "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_anynpu_library rknnrt rknnmrt rga VIPlite VIPuser NBGlinker VIPhal awnn)
  if(NOT TARGET anynpu::${_anynpu_library})
    add_library(anynpu::${_anynpu_library} SHARED IMPORTED)
    set_target_properties(anynpu::${_anynpu_library} PROPERTIES
      IMPORTED_LOCATION "${_anynpu_folder}/lib/lib${_anynpu_library}.so"
      IMPORTED_SONAME "lib${_anynpu_library}.so"
      INTERFACE_INCLUDE_DIRECTORIES "${_anynpu_folder}/include")
  endif()
endforeach()
unset(_anynpu_library)
unset(_anynpu_folder)
