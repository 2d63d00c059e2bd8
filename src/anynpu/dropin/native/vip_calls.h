/* libVIPlite and libNBGlinker: the calls that are not passed on as they come. */
/* own: vip_init vip_destroy */

#include <stdatomic.h>
#include <stdio.h>

/* What the driver of each generation prints when it starts, by the version of the interface. */
static const struct {
    vip_uint32_t version;
    const char *driver;
} drivers[] = {
    {0x00010800, "1.8.0"},
    {0x00010d00, "1.13.0.0-AW-2023-10-19"},
    {0x00020003, "2.0.3.2-AW-2024-08-30"},
};

static atomic_int starts;

/* A caller of a generation without the parameter leaves anything in its place; who asks for the driver's start looks away then. */
ANYNPU_EXPORT vip_status_e vip_init(vip_uint32_t video_mem_size)
{
    vip_status_e status = call_vip_init(video_mem_size);
    if (status != VIP_SUCCESS || atomic_fetch_add(&starts, 1) != 0)
        return status;
    vip_uint32_t version = call_vip_get_version();
    for (size_t index = 0; index < sizeof drivers / sizeof *drivers; index++)
        if (drivers[index].version == version)
            printf("VIPLite driver software version %s\n", drivers[index].driver);
    return status;
}

ANYNPU_EXPORT vip_status_e vip_destroy(void)
{
    vip_status_e status = call_vip_destroy();
    if (status == VIP_SUCCESS)
        atomic_fetch_sub(&starts, 1);
    return status;
}
