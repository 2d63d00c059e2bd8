/* Wrong programs with the VIPLite calls, and the same ones fixed: faults_vip MODEL wrong|fixed CASE... */
#include "vip_support.h"

static char *model;
static int wrong;
static vip_network network;
static vip_buffer input, output;


static void begin(void)
{
    OK(vip_init());
    OK(vip_create_network(model, 0, VIP_CREATE_NETWORK_FROM_FILE, &network));
    OK(vip_prepare_network(network));
}

static void bind_both(int cached)
{
    vip_buffer_create_params_t params = describe(network, 0, 1);
    OK((cached ? vip_create_buffer_cache : vip_create_buffer)(&params, sizeof params, &input));
    params = describe(network, 0, 0);
    OK((cached ? vip_create_buffer_cache : vip_create_buffer)(&params, sizeof params, &output));
    OK(vip_set_input(network, 0, input));
    OK(vip_set_output(network, 0, output));
}

static void write_picture(int extra)
{
    fill_bytes(vip_map_buffer(input), vip_get_buffer_size(input) + extra, 5);
    vip_unmap_buffer(input);
}

static void finish(int with_network, int with_output)
{
    OK(vip_finish_network(network));
    if (with_network)
        OK(vip_destroy_network(network));
    OK(vip_destroy_buffer(input));
    if (with_output)
        OK(vip_destroy_buffer(output));
    OK(vip_destroy());
}

static void cached(int flush, int invalidate)
{
    begin();
    bind_both(1);
    write_picture(0);
    if (flush)
        OK(vip_flush_buffer(input, VIP_BUFFER_OPER_TYPE_FLUSH));
    OK(vip_run_network(network));
    if (invalidate)
        OK(vip_flush_buffer(output, VIP_BUFFER_OPER_TYPE_INVALIDATE));
    printf("%u\n", checksum(vip_map_buffer(output), vip_get_buffer_size(output)));
    finish(1, 1);
}

static void no_flush(void) { cached(!wrong, 1); }

static void no_invalidate(void) { cached(1, !wrong); }

static void use_after_destroy(void)
{
    begin();
    OK(vip_destroy_network(network));
    if (wrong)
        CHECK(vip_run_network(network) != VIP_SUCCESS);
    OK(vip_destroy());
}

static void double_destroy(void)
{
    begin();
    OK(vip_destroy_network(network));
    if (wrong)
        CHECK(vip_destroy_network(network) != VIP_SUCCESS);
    OK(vip_destroy());
}

static void network_leak(void)
{
    begin();
    bind_both(0);
    finish(!wrong, 1);
}

static void buffer_leak(void)
{
    begin();
    bind_both(0);
    finish(1, !wrong);
}

static void driver_leak(void)
{
    OK(vip_init());
    if (!wrong)
        OK(vip_destroy());
}

static void before_init(void)
{
    vip_uint32_t cid = 0;
    if (!wrong)
        OK(vip_init());
    CHECK((vip_query_hardware(VIP_QUERY_HW_PROP_CID, sizeof cid, &cid) != VIP_SUCCESS) == wrong);
    if (!wrong)
        OK(vip_destroy());
}

static void before_prepare(void)
{
    begin();
    bind_both(0);
    if (wrong) {
        OK(vip_finish_network(network));
        CHECK(vip_set_input(network, 0, input) != VIP_SUCCESS);
    }
    finish(1, 1);
}

static void never_written(void)
{
    begin();
    bind_both(0);
    if (!wrong)
        write_picture(0);
    OK(vip_run_network(network));
    finish(1, 1);
}

static void behind_buffer(void)
{
    begin();
    bind_both(0);
    write_picture(wrong);
    OK(vip_run_network(network));
    finish(1, 1);
}

static void written_during_run(void)
{
    begin();
    bind_both(0);
    write_picture(0);
    OK(vip_trigger_network(network));
    if (wrong)
        memset(vip_map_buffer(input), 9, 8);
    OK(vip_wait_network(network));
    finish(1, 1);
}

static void destroyed_during_run(void)
{
    begin();
    bind_both(0);
    write_picture(0);
    OK(vip_trigger_network(network));
    if (wrong)
        OK(vip_destroy_buffer(output));
    vip_wait_network(network);
    finish(1, !wrong);
}

static void wrong_index(void)
{
    vip_uint32_t dims = 0;
    begin();
    bind_both(0);
    CHECK((vip_query_input(network, wrong ? 4 : 0, VIP_BUFFER_PROP_NUM_OF_DIMENSION, &dims) != VIP_SUCCESS) == wrong);
    finish(1, 1);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"before_init", before_init}, /* before all others */
    {"no_flush", no_flush},
    {"no_invalidate", no_invalidate},
    {"use_after_destroy", use_after_destroy},
    {"double_destroy", double_destroy},
    {"network_leak", network_leak},
    {"buffer_leak", buffer_leak},
    {"before_prepare", before_prepare},
    {"never_written", never_written},
    {"behind_buffer", behind_buffer},
    {"written_during_run", written_during_run},
    {"destroyed_during_run", destroyed_during_run},
    {"wrong_index", wrong_index},
    {"driver_leak", driver_leak},
};

int main(int argc, char **argv)
{
    CHECK(argc > 3);
    model = argv[1];
    wrong = strcmp(argv[2], "wrong") == 0;
    for (int argument = 3; argument < argc; argument++) {
        size_t i = 0;
        while (i < sizeof cases / sizeof *cases && strcmp(cases[i].name, argv[argument]) != 0)
            i++;
        CHECK(i < sizeof cases / sizeof *cases);
        cases[i].run();
    }
    return 0;
}
