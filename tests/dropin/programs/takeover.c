/* What an attacker would like a program with more rights to load. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void take_over(void)
{
    int fd = open(MARK, O_CREAT | O_WRONLY, 0600);
    if (fd >= 0)
        close(fd);
}
