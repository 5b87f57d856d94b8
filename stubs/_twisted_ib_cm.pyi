from _cffi_backend import FFI, Lib

ffi: FFI
lib: Lib
