//! Kernels by source, constants and entry: compiled, loaded and remembered when first asked for.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use cudarc::driver::{result, sys};

use super::cache::{KernelCache, Key};
use super::driver::Context;
use super::error::CudaError;
use super::nvrtc::Nvrtc;
use super::sources::{Defines, HEADERS, Source};
use crate::{Error, Result};

/// A kernel, ready to be launched. Modules stay loaded as long as their context, so that it is only a handle.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub(super) function: sys::CUfunction,
    pub(super) entry: &'static str,
}

// SAFETY: a handle into the driver, which takes it from any thread.
unsafe impl Send for Kernel {}

type ModuleKey = (&'static str, Vec<(&'static str, i64)>);

struct Module {
    handle: sys::CUmodule,
    kernels: HashMap<&'static str, Kernel>,
}

// SAFETY: as for `Kernel`.
unsafe impl Send for Module {}

/// All kernels of a device.
pub(crate) struct Kernels {
    context: Arc<Context>,
    arch: String,
    cache: KernelCache,
    /// Found when the first kernel is not in the cache.
    nvrtc: OnceLock<Nvrtc>,
    modules: Mutex<HashMap<ModuleKey, Module>>,
}

impl Kernels {
    pub(crate) fn new(context: &Arc<Context>, cache: KernelCache) -> Self {
        Self {
            context: context.clone(),
            arch: context.card.arch(),
            cache,
            nvrtc: OnceLock::new(),
            modules: Mutex::new(HashMap::new()),
        }
    }

    /// The compiler, which must know the card.
    pub(crate) fn nvrtc(&self) -> Result<&Nvrtc, CudaError> {
        if let Some(nvrtc) = self.nvrtc.get() {
            return Ok(nvrtc);
        }
        let nvrtc = Nvrtc::find(self.context.card.driver)?;
        let (major, minor) = self.context.card.capability;
        if !nvrtc.knows(major * 10 + minor) {
            return Err(CudaError::Compiler {
                path: nvrtc.path().to_owned(),
                version: nvrtc.version(),
                what: format!(
                    "it does not compile for {}, compute capability {major}.{minor}; install a newer one",
                    self.context.card.name
                ),
            });
        }
        Ok(self.nvrtc.get_or_init(|| nvrtc))
    }

    /// Without a compiler, kernels must have been compiled before.
    pub(crate) fn check_compiler(&self) -> Result<(), CudaError> {
        match self.nvrtc() {
            Err(_) if self.cache.holds_any() => Ok(()),
            found => found.map(|_| ()),
        }
    }

    /// The kernel `entry` of a source with these constants.
    pub(crate) fn get(
        &self,
        source: &'static Source,
        defines: &Defines,
        entry: &'static str,
    ) -> Result<Kernel> {
        let mut modules = self.lock();
        let key = (source.name, defines.to_vec());
        if let Some(kernel) = modules.get(&key).and_then(|module| module.kernels.get(entry)) {
            return Ok(*kernel);
        }
        let module = match modules.entry(key) {
            std::collections::hash_map::Entry::Occupied(module) => module.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                let handle = self.load(source, defines)?;
                place.insert(Module { handle, kernels: HashMap::new() })
            }
        };
        let name = CString::new(entry).unwrap_or_default();
        let kernel = self.context.call(
            || format!("looking for kernel {entry} in {}", source.name),
            // SAFETY: the module stays loaded.
            || unsafe { result::module::get_function(module.handle, name) },
        )?;
        let kernel = Kernel { function: kernel, entry };
        module.kernels.insert(entry, kernel);
        Ok(kernel)
    }

    fn load(&self, source: &Source, defines: &Defines) -> Result<sys::CUmodule> {
        let options = source.options(defines);
        // With the compiler at hand, its version is part of the key. A start with a full cache needs no compiler, so
        // files are also found under the version that wrote them last.
        let base = |version: &str| {
            let headers = HEADERS.iter().map(|(_, code)| *code);
            let parts = [source.name, source.code, &self.arch, version];
            Key::new(parts.into_iter().chain(headers).chain(options.iter().map(String::as_str)))
        };
        let nvrtc = self.nvrtc();
        let version = match &nvrtc {
            Ok(nvrtc) => format!("{}.{}", nvrtc.version().0, nvrtc.version().1),
            Err(_) => "any".to_owned(),
        };
        let key = base(&version);
        if let Some(code) = self.cache.load(&key)
            && let Ok(module) = self.load_code(source, &code)
        {
            return Ok(module);
        }
        let nvrtc = nvrtc.map_err(Error::Cuda)?;
        let code = nvrtc.compile(source.name, source.code, &self.arch, &options).map_err(Error::Cuda)?;
        for key in [key, base("any")] {
            if let Err(fault) = self.cache.store(&key, &code) {
                self.warn(&fault);
                break;
            }
        }
        self.load_code(source, &code)
    }

    fn load_code(&self, source: &Source, code: &[u8]) -> Result<sys::CUmodule> {
        self.context.call(
            || format!("loading {}", source.name),
            // SAFETY: machine code as the compiler made it; its digest was checked if it comes from a file.
            || unsafe { result::module::load_data(code.as_ptr().cast::<c_void>()) },
        )
    }

    /// Says once that kernels will be compiled again next time.
    fn warn(&self, fault: &std::io::Error) {
        static ONCE: OnceLock<()> = OnceLock::new();
        ONCE.get_or_init(|| {
            let folder = self.cache.folder().map(|folder| folder.display().to_string()).unwrap_or_default();
            eprintln!(
                "warning: compiled kernels cannot be kept in {folder} ({fault}): each start compiles them again; name \
                 a folder in GRUFF_KERNEL_CACHE"
            );
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModuleKey, Module>> {
        self.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        for module in self.lock().values() {
            let handle = module.handle;
            // Kernels in flight are waited for by the driver. Nothing can be done about a fault here.
            // SAFETY: loaded by this; no kernel of it can be launched any more.
            let _ = self.context.call(|| "unloading".into(), || unsafe { result::module::unload(handle) });
        }
    }
}
