//! NVRTC, the library that compiles CUDA C++ at run time: where it is found, and its few functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library;

use super::error::CudaError;
use super::libraries::Wanted;
use super::sources::HEADERS;

/// Where PyPI's wheels have the library.
const WHEELS: [&str; 4] =
    ["nvidia/cu13/lib", "nvidia/cu13/bin/x86_64", "nvidia/cuda_nvrtc/lib", "nvidia/cuda_nvrtc/bin"];

type Program = *mut c_void;
type Status = c_int;

/// The library, loaded.
pub struct Nvrtc {
    path: String,
    version: (i32, i32),
    functions: Functions,
    /// Keep the functions where they are.
    _libraries: Vec<Library>,
}

struct Functions {
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    archs: Option<(unsafe extern "C" fn(*mut c_int) -> Status, unsafe extern "C" fn(*mut c_int) -> Status)>,
}

impl Nvrtc {
    /// Looks for the library: `GRUFF_NVRTC`, the system's search path, CUDA toolkits, Python environments. One of the
    /// driver's major version is taken before an older one, and none that is newer: its kernels would not load.
    ///
    /// # Errors
    /// [`CudaError::NoCompiler`] when it is not found.
    pub fn find(driver: i32) -> Result<Self, CudaError> {
        let newest = driver / 1000;
        let names = names(newest);
        let wanted = Wanted { variable: "GRUFF_NVRTC", names: &names, wheels: &WHEELS };
        let found = wanted.find(|path| match Self::load(path) {
            Ok(found) if found.version.0 <= newest => Ok(found),
            Ok(found) => Err(format!(", which is for CUDA {}.{}", found.version.0, found.version.1)),
            Err(_) => Err(String::new()),
        });
        found.map_err(|tried| CudaError::NoCompiler { driver, tried })
    }

    fn load(path: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: NVIDIA's library runs no code of consequence when loaded; its functions have these types (nvrtc.h).
        unsafe {
            let mut libraries = builtins(path);
            let library = Library::new(path)?;
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status =
                *library.get(c"nvrtcVersion")?;
            let functions = Functions {
                error_string: *library.get(c"nvrtcGetErrorString")?,
                create: *library.get(c"nvrtcCreateProgram")?,
                destroy: *library.get(c"nvrtcDestroyProgram")?,
                compile: *library.get(c"nvrtcCompileProgram")?,
                cubin_size: *library.get(c"nvrtcGetCUBINSize")?,
                cubin: *library.get(c"nvrtcGetCUBIN")?,
                log_size: *library.get(c"nvrtcGetProgramLogSize")?,
                log: *library.get(c"nvrtcGetProgramLog")?,
                archs: match (
                    library.get(c"nvrtcGetNumSupportedArchs"),
                    library.get(c"nvrtcGetSupportedArchs"),
                ) {
                    (Ok(count), Ok(list)) => Some((*count, *list)),
                    _ => None,
                },
            };
            let (mut major, mut minor) = (0, 0);
            version(&mut major, &mut minor);
            libraries.push(library);
            Ok(Self {
                path: path.display().to_string(),
                version: (major, minor),
                functions,
                _libraries: libraries,
            })
        }
    }

    /// Where it was found.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Whether it compiles for an architecture such as 90, as far as it tells.
    pub fn knows(&self, arch: i32) -> bool {
        let Some((count, list)) = self.functions.archs else { return true };
        let mut number = 0;
        // SAFETY: writes one number.
        if unsafe { count(&mut number) } != 0 {
            return true;
        }
        let mut archs = vec![0; usize::try_from(number).unwrap_or(0)];
        // SAFETY: writes as many numbers as the first function said.
        let listed = archs.is_empty() || unsafe { list(archs.as_mut_ptr()) } == 0;
        !listed || archs.contains(&arch)
    }

    /// Compiles a source to machine code of `arch` (`sm_90a`); `name` stands in messages.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with the compiler's log.
    pub fn compile(
        &self,
        name: &str,
        code: &str,
        arch: &str,
        options: &[String],
    ) -> Result<Vec<u8>, CudaError> {
        let fail =
            |log: String| CudaError::Compile { source_name: name.to_owned(), arch: arch.to_owned(), log };
        let text = |text: &str| CString::new(text).map_err(|_| fail("a zero byte in the source".into()));
        let (source, file) = (text(code)?, text(name)?);
        let headers: Vec<(CString, CString)> = HEADERS
            .iter()
            .map(|(name, code)| Ok((text(name)?, text(code)?)))
            .collect::<Result<_, CudaError>>()?;
        let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let codes: Vec<*const c_char> = headers.iter().map(|(_, code)| code.as_ptr()).collect();
        let options: Vec<CString> = [format!("--gpu-architecture={arch}"), "--std=c++17".to_owned()]
            .iter()
            .chain(options)
            .map(|option| text(option))
            .collect::<Result<_, CudaError>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Destroyed { nvrtc: self, program: ptr::null_mut() };
        // SAFETY: all strings outlive the call.
        let status = unsafe {
            (self.functions.create)(
                &mut program.program,
                source.as_ptr(),
                file.as_ptr(),
                headers.len() as c_int,
                codes.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check(status).map_err(fail)?;
        // SAFETY: the program was made; options outlive the call.
        let status =
            unsafe { (self.functions.compile)(program.program, options.len() as c_int, options.as_ptr()) };
        if let Err(what) = self.check(status) {
            return Err(fail(self.log(program.program).unwrap_or(what)));
        }
        let mut size = 0;
        // SAFETY: the program is compiled.
        self.check(unsafe { (self.functions.cubin_size)(program.program, &mut size) }).map_err(fail)?;
        let mut cubin = vec![0u8; size];
        // SAFETY: there is room for as many bytes as it said.
        let status = unsafe { (self.functions.cubin)(program.program, cubin.as_mut_ptr().cast()) };
        self.check(status).map_err(fail)?;
        Ok(cubin)
    }

    fn log(&self, program: Program) -> Option<String> {
        let mut size = 0;
        // SAFETY: the program lives.
        self.check(unsafe { (self.functions.log_size)(program, &mut size) }).ok()?;
        let mut log = vec![0u8; size];
        // SAFETY: there is room for as many bytes as it said.
        self.check(unsafe { (self.functions.log)(program, log.as_mut_ptr().cast()) }).ok()?;
        Some(String::from_utf8_lossy(&log).trim_end_matches('\0').trim_end().to_owned())
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: returns a static string for every number.
        let words = unsafe { (self.functions.error_string)(status) };
        if words.is_null() {
            return Err(format!("NVRTC error {status}"));
        }
        // SAFETY: a string that ends with zero and is never freed.
        Err(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
    }
}

/// The library's own part, which it asks for by name only: loaded from the same folder, it is found in any place.
///
/// # Safety
/// NVIDIA's libraries run no code of consequence when loaded.
unsafe fn builtins(path: &Path) -> Vec<Library> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.contains("nvrtc-builtins") && !name.contains("alt") && !name.ends_with(".a")
    });
    // SAFETY: as stated above.
    named.filter_map(|entry| unsafe { Library::new(entry.path()) }.ok()).collect()
}

/// Destroys a program when it goes.
struct Destroyed<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Drop for Destroyed<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: made by the same library, used by nobody any more.
            unsafe { (self.nvrtc.functions.destroy)(&mut self.program) };
        }
    }
}

/// The library's file, for CUDA of this major version and of older ones.
fn names(newest: i32) -> Vec<String> {
    let majors = (12..=newest).rev();
    if cfg!(windows) {
        return majors.map(|major| format!("nvrtc64_{major}0_0.dll")).collect();
    }
    majors.map(|major| format!("libnvrtc.so.{major}")).chain(["libnvrtc.so".to_owned()]).collect()
}
