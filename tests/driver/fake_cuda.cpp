// A libcuda.so.1 for tests, with two made-up devices: all that the driver asks of it is how many there are.
extern "C" {

int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

}  // extern "C"
