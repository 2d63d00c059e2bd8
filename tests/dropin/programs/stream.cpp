// A file of the system, read as C++ programs do.
#include <fstream>
#include <iostream>

int main(int, char **argv)
{
    std::ifstream file(argv[1], std::ios::binary);
    std::cout << file.rdbuf();
    return file.good() ? 0 : 1;
}
