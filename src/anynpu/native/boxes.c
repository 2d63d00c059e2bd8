/* Which of several boxes that overlap stay. */
#include "anynpu_native.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

/* Intersection over union; 0 for two boxes without an area. */
static double overlap_of(const double *a, const double *b)
{
    double width = larger(smaller(a[2], b[2]) - larger(a[0], b[0]), 0.0);
    double height = larger(smaller(a[3], b[3]) - larger(a[1], b[1]), 0.0);
    double shared = width * height;
    double total = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared;
    return total > 0.0 ? shared / total : 0.0;
}

size_t anynpu_suppress_f64(const double *boxes, const int64_t *classes, const int64_t *order, size_t count, double overlap, size_t most,
                           int64_t *kept)
{
    size_t found = 0;
    for (size_t i = 0; i < count && found < most; i++) {
        const double *box = boxes + 4 * order[i];
        int64_t number = classes[order[i]];
        size_t k = 0;
        while (k < found && (classes[kept[k]] != number || !(overlap_of(boxes + 4 * kept[k], box) > overlap)))
            k++;
        if (k == found)
            kept[found++] = order[i];
    }
    return found;
}
