// In place of the runtime's header, for NVRTC, which has what device code needs of it without asking.
#pragma once
