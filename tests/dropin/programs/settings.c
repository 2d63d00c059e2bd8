/* Prints where a library would take Python from. It is linked with the library's own settings.c and secure.c, the latter compiled as in a
 * program that has more rights than its caller, with the user of this program in the place of root. */
#include <stdio.h>

#include "../../../src/anynpu/dropin/native/shim.h"

int main(void)
{
    static struct anynpu_settings settings;
    anynpu_find_settings(&settings);
    const char *untrusted = anynpu_untrusted_setting(&settings);
    printf("python=%s\nlibpython=%s\nsite=%s\nversion=%s\n", settings.python, settings.libpython, settings.site, settings.version);
    printf("untrusted=%s\n", untrusted == NULL ? "" : untrusted);
    return 0;
}
