// A program in Rust without crates: the functions of ONNX Runtime by slot number.
//   host PROVIDER MODEL INPUT OUTPUT FILE_IN FILE_OUT DIMS
use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Base {
    get_api: extern "C" fn(u32) -> *const *const c_void,
    version: extern "C" fn() -> *const c_char,
}

extern "C" {
    fn OrtGetApiBase() -> *const Base;
}

type Handle = *mut c_void;

fn main() {
    let given: Vec<CString> = std::env::args().map(|text| CString::new(text).unwrap()).collect();
    let text = |index: usize| given[index].to_str().unwrap();
    let dims: Vec<i64> = text(7).split(',').map(|size| size.parse().unwrap()).collect();
    let mut data = std::fs::read(text(5)).unwrap();
    unsafe {
        let api = ((*OrtGetApiBase()).get_api)(23);
        macro_rules! call {
            ($slot:expr, fn($($kind:ty),*) -> $result:ty) => {
                std::mem::transmute::<*const c_void, extern "C" fn($($kind),*) -> $result>(*api.add($slot))
            };
        }
        let message = call!(2, fn(Handle) -> *const c_char);
        let check = |status: Handle| {
            if !status.is_null() {
                panic!("{}", CStr::from_ptr(message(status)).to_string_lossy());
            }
        };
        let mut env: Handle = null_mut();
        check(call!(3, fn(i32, *const c_char, *mut Handle) -> Handle)(3, c"host".as_ptr(), &mut env));
        check(call!(301, fn(Handle, *const c_char, *const c_char) -> Handle)(env, c"anynpu".as_ptr(), given[1].as_ptr()));
        let (mut devices, mut count): (*const Handle, usize) = (null(), 0);
        check(call!(303, fn(Handle, *mut *const Handle, *mut usize) -> Handle)(env, &mut devices, &mut count));
        let name = call!(312, fn(Handle) -> *const c_char);
        let own: Vec<Handle> = (0..count)
            .map(|index| *devices.add(index))
            .filter(|device| CStr::from_ptr(name(*device)).to_bytes() == b"AnynpuExecutionProvider")
            .collect();
        let mut options: Handle = null_mut();
        check(call!(10, fn(*mut Handle) -> Handle)(&mut options));
        let append = call!(304, fn(Handle, Handle, *const Handle, usize, *const *const c_char, *const *const c_char, usize) -> Handle);
        check(append(options, env, own.as_ptr(), own.len(), null(), null(), 0));
        let mut session: Handle = null_mut();
        check(call!(7, fn(Handle, *const c_char, Handle, *mut Handle) -> Handle)(env, given[2].as_ptr(), options, &mut session));
        let mut memory: Handle = null_mut();
        check(call!(69, fn(i32, i32, *mut Handle) -> Handle)(0, 0, &mut memory));
        let mut input: Handle = null_mut();
        let tensor = call!(49, fn(Handle, *mut u8, usize, *const i64, usize, i32, *mut Handle) -> Handle);
        check(tensor(memory, data.as_mut_ptr(), data.len(), dims.as_ptr(), dims.len(), 1, &mut input));
        let mut output: Handle = null_mut();
        let run = call!(9, fn(Handle, Handle, *const *const c_char, *const Handle, usize, *const *const c_char, usize, *mut Handle) -> Handle);
        check(run(session, null_mut(), [given[3].as_ptr()].as_ptr(), &input, 1, [given[4].as_ptr()].as_ptr(), 1, &mut output));
        let (mut result, mut bytes): (*const u8, usize) = (null(), 0);
        check(call!(51, fn(Handle, *mut *const u8) -> Handle)(output, &mut result));
        check(call!(318, fn(Handle, *mut usize) -> Handle)(output, &mut bytes));
        std::fs::write(text(6), std::slice::from_raw_parts(result, bytes)).unwrap();
        println!("ONNX Runtime {}", CStr::from_ptr(((*OrtGetApiBase()).version)()).to_string_lossy());
        call!(95, fn(Handle) -> ())(session);
    }
}
