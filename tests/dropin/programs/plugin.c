/* A library that only the program's own search path leads to. */
int answer(void);

int answer(void)
{
    return 42;
}
