//! mini MODEL INPUT OUTPUT_PREFIX: loads librknnmrt.so when it runs and makes one inference without copies, with a handle of four bytes.
//! Each output is written to OUTPUT_PREFIX followed by its number.

use std::ffi::{c_char, c_int, c_void, CString};

#[repr(C)]
struct InputOutputNumber {
    inputs: u32,
    outputs: u32,
}

#[repr(C)]
#[derive(Clone)]
struct TensorAttributes {
    index: u32,
    n_dims: u32,
    dims: [u32; 16],
    name: [c_char; 256],
    n_elems: u32,
    size: u32,
    format: u32,
    kind: u32,
    quantization: u32,
    fl: i8,
    zero_point: i32,
    scale: f32,
    w_stride: u32,
    size_with_stride: u32,
    pass_through: u8,
    h_stride: u32,
}

#[repr(C)]
struct TensorMemory {
    virtual_address: *mut c_void,
    physical_address: u64,
    fd: i32,
    offset: i32,
    size: u32,
    flags: u32,
    private: *mut c_void,
}

const QUERY_NUMBER: c_int = 0;
const QUERY_NATIVE_INPUT: c_int = 8;
const QUERY_NATIVE_OUTPUT: c_int = 9;
const UINT8: u32 = 3;
const NHWC: u32 = 1;
const FROM_DEVICE: c_int = 2;
const NOW: c_int = 2;

type Handle = u32;

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
}

struct Library {
    handle: *mut c_void,
    init: extern "C" fn(*mut Handle, *const c_void, u32, u32, *mut c_void) -> c_int,
    query: extern "C" fn(Handle, c_int, *mut c_void, u32) -> c_int,
    create_mem: extern "C" fn(Handle, u32) -> *mut TensorMemory,
    set_io_mem: extern "C" fn(Handle, *mut TensorMemory, *mut TensorAttributes) -> c_int,
    run: extern "C" fn(Handle, *mut c_void) -> c_int,
    mem_sync: extern "C" fn(Handle, *mut TensorMemory, c_int) -> c_int,
    destroy_mem: extern "C" fn(Handle, *mut TensorMemory) -> c_int,
    destroy: extern "C" fn(Handle) -> c_int,
}

impl Library {
    fn load(path: &str) -> Library {
        let path = CString::new(path).unwrap();
        unsafe {
            let handle = dlopen(path.as_ptr(), NOW);
            assert!(!handle.is_null(), "the library cannot be loaded");
            let find = |name: &str| {
                let name = CString::new(name).unwrap();
                let symbol = dlsym(handle, name.as_ptr());
                assert!(!symbol.is_null(), "{name:?} is missing");
                symbol
            };
            Library {
                handle,
                init: std::mem::transmute(find("rknn_init")),
                query: std::mem::transmute(find("rknn_query")),
                create_mem: std::mem::transmute(find("rknn_create_mem")),
                set_io_mem: std::mem::transmute(find("rknn_set_io_mem")),
                run: std::mem::transmute(find("rknn_run")),
                mem_sync: std::mem::transmute(find("rknn_mem_sync")),
                destroy_mem: std::mem::transmute(find("rknn_destroy_mem")),
                destroy: std::mem::transmute(find("rknn_destroy")),
            }
        }
    }

    fn attributes(&self, handle: Handle, query: c_int, index: u32) -> TensorAttributes {
        let mut attributes: TensorAttributes = unsafe { std::mem::zeroed() };
        attributes.index = index;
        let size = std::mem::size_of::<TensorAttributes>() as u32;
        let code = (self.query)(handle, query, &mut attributes as *mut _ as *mut c_void, size);
        assert_eq!(code, 0, "query {query} of tensor {index}");
        attributes
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let model = std::fs::read(&arguments[1]).unwrap();
    let input = std::fs::read(&arguments[2]).unwrap();
    let library = Library::load("/usr/lib/librknnmrt.so");

    const GUARD: u32 = 0xdead_beef;
    let mut place: [Handle; 2] = [0, GUARD];
    let code = (library.init)(place.as_mut_ptr(), model.as_ptr() as *const c_void, model.len() as u32, 0, std::ptr::null_mut());
    assert_eq!(code, 0, "rknn_init");
    assert_ne!(place[0], 0);
    assert_eq!(place[1], GUARD, "more than four bytes were written");
    drop(model);
    let handle = place[0];

    let mut number = InputOutputNumber { inputs: 0, outputs: 0 };
    assert_eq!((library.query)(handle, QUERY_NUMBER, &mut number as *mut _ as *mut c_void, 8), 0);
    assert_eq!(number.inputs, 1);

    let mut attributes = library.attributes(handle, QUERY_NATIVE_INPUT, 0);
    attributes.kind = UINT8;
    attributes.format = NHWC;
    attributes.pass_through = 0;
    let input_memory = (library.create_mem)(handle, attributes.size_with_stride);
    assert!(!input_memory.is_null());
    assert_eq!((library.set_io_mem)(handle, input_memory, &mut attributes), 0);

    let mut outputs = Vec::new();
    for index in 0..number.outputs {
        let mut attributes = library.attributes(handle, QUERY_NATIVE_OUTPUT, index);
        let memory = (library.create_mem)(handle, attributes.size_with_stride);
        assert!(!memory.is_null());
        assert_eq!((library.set_io_mem)(handle, memory, &mut attributes), 0);
        outputs.push((memory, attributes));
    }

    unsafe {
        let target = (*input_memory).virtual_address as *mut u8;
        std::ptr::copy_nonoverlapping(input.as_ptr(), target, input.len());
    }
    assert_eq!((library.run)(handle, std::ptr::null_mut()), 0);
    for (index, (memory, attributes)) in outputs.iter().enumerate() {
        assert_eq!((library.mem_sync)(handle, *memory, FROM_DEVICE), 0);
        let bytes = unsafe { std::slice::from_raw_parts((**memory).virtual_address as *const u8, attributes.n_elems as usize) };
        std::fs::write(format!("{}{index}", arguments[3]), bytes).unwrap();
        println!("{:?} {} {}", &attributes.dims[..attributes.n_dims as usize], attributes.zero_point, attributes.scale);
    }

    for (memory, _) in &outputs {
        assert_eq!((library.destroy_mem)(handle, *memory), 0);
    }
    assert_eq!((library.destroy_mem)(handle, input_memory), 0);
    assert_eq!((library.destroy)(handle), 0);
    assert_eq!((library.destroy)(handle), -7);
    assert_eq!(unsafe { dlclose(library.handle) }, 0);
}
