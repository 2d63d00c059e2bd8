/* The ioctls of the kernel driver rocket on /dev/accel/accelN, as programs pass them. All numbers are little-endian. */
#ifndef ANYNPU_ACCEL_H
#define ANYNPU_ACCEL_H

#include <stddef.h>
#include <stdint.h>

#define ACCEL_VERSION 0xC0406400
#define ACCEL_GEM_CLOSE 0x40086409
#define ACCEL_CREATE_BO 0xC0186440
#define ACCEL_SUBMIT 0x40186441
#define ACCEL_PREP_BO 0x40106442
#define ACCEL_FINI_BO 0x40086443

struct accel_version {
  int major;
  int minor;
  int patch;
  size_t name_len;
  char *name;
  size_t date_len;
  char *date;
  size_t desc_len;
  char *desc;
};

struct accel_gem_close {
  uint32_t handle;
  uint32_t pad;
};

struct accel_create_bo {
  uint32_t size;
  uint32_t handle;
  uint64_t dma_address;
  uint64_t offset;
};

struct accel_submit {
  uint64_t jobs;
  uint32_t job_count;
  uint32_t job_struct_size;
  uint64_t reserved;
};

struct accel_prep_bo {
  uint32_t handle;
  uint32_t reserved;
  int64_t timeout_ns;
};

struct accel_fini_bo {
  uint32_t handle;
  uint32_t reserved;
};

struct accel_job {
  uint64_t tasks;
  uint64_t in_bo_handles;
  uint64_t out_bo_handles;
  uint32_t task_count;
  uint32_t task_struct_size;
  uint32_t in_bo_count;
  uint32_t out_bo_count;
};

struct accel_task {
  uint32_t regcmd;
  uint32_t regcmd_count;
};

typedef int accel_result;

/* A memory file becomes an open file of the device; 0, or a negative error number. */
accel_result accel_open(int fd);

/* An ioctl on such a file; 0, or a negative error number. */
accel_result accel_ioctl(int fd, uint32_t request, void *argument);

#endif
