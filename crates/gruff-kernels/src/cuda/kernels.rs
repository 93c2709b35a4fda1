//! Kernels by source, constants and entry: compiled, loaded and remembered when first asked for, or ahead.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CString, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use cudarc::driver::{result, sys};

use super::cache::{KernelCache, Key};
use super::driver::Context;
use super::early;
use super::error::CudaError;
use super::nvrtc::Nvrtc;
use super::phase::{self, Phase};
use super::sources::{Defines, HEADERS, Source};
use crate::{Error, Result};

/// The most constants of a variant.
const CONSTANTS: usize = 8;

/// The most threads that compile: each takes a core and some hundred megabytes.
const COMPILERS: usize = 16;

/// A kernel, ready to be launched. Modules stay loaded as long as their context, so that it is only a handle.
#[derive(Clone)]
pub(crate) struct Kernel(Arc<Loaded>);

struct Loaded {
    function: sys::CUfunction,
    entry: &'static str,
    /// Whether it waits for the kernel before.
    waits: bool,
    /// Bytes of dynamic shared memory that it may have besides the usual 48 KiB.
    shared: AtomicUsize,
}

// SAFETY: a handle into the driver, which takes it from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above; the number beside it is atomic.
unsafe impl Sync for Loaded {}

impl Kernel {
    fn new(function: sys::CUfunction, source: &Source, entry: &'static str) -> Self {
        let waits = early::waits(source.code, entry);
        Self(Arc::new(Loaded { function, entry, waits, shared: AtomicUsize::new(0) }))
    }

    /// Whether it may be launched before the end of the kernel before, for which it waits.
    pub(super) fn waits(&self) -> bool {
        self.0.waits
    }

    pub(super) fn function(&self) -> sys::CUfunction {
        self.0.function
    }

    pub(super) fn entry(&self) -> &'static str {
        self.0.entry
    }

    pub(super) fn allowed(&self) -> usize {
        self.0.shared.load(Ordering::Relaxed)
    }

    pub(super) fn allow(&self, bytes: usize) {
        self.0.shared.fetch_max(bytes, Ordering::Relaxed);
    }
}

/// A variant of a source and an entry of it.
pub(crate) struct Need {
    source: &'static Source,
    defines: Vec<(&'static str, i64)>,
    entry: &'static str,
}

impl PartialEq for Need {
    fn eq(&self, other: &Self) -> bool {
        self.source.name == other.source.name && self.defines == other.defines && self.entry == other.entry
    }
}

impl Need {
    fn module(&self) -> ModuleKey {
        (self.source.name, self.defines.clone())
    }
}

type ModuleKey = (&'static str, Vec<(&'static str, i64)>);

struct Module {
    handle: sys::CUmodule,
    kernels: HashMap<&'static str, Kernel>,
}

// SAFETY: as for `Loaded`.
unsafe impl Send for Module {}

/// What every launch looks a kernel up by, without allocating: where source and entry stand in the program, and the
/// constants' values, whose names belong to the source.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Known {
    source: usize,
    /// Address and length: a name may be the beginning of another's bytes.
    entry: (usize, usize),
    /// How many there are, and what they are.
    values: (usize, [i64; CONSTANTS]),
}

impl Known {
    fn new(source: &'static Source, defines: &Defines, entry: &'static str) -> Option<Self> {
        let mut values = [0; CONSTANTS];
        let places = values.get_mut(..defines.len())?;
        places.iter_mut().zip(defines).for_each(|(place, (_, value))| *place = *value);
        Some(Self {
            source: std::ptr::from_ref(source).addr(),
            entry: (entry.as_ptr().addr(), entry.len()),
            values: (defines.len(), values),
        })
    }
}

/// Multiplies and turns: keys are few and nobody chooses them.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        // The golden ratio's fraction, as in Fibonacci hashing.
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

/// All kernels of a device.
pub(crate) struct Kernels {
    context: Arc<Context>,
    arch: String,
    cache: KernelCache,
    /// Found when the first kernel is not in the cache.
    nvrtc: OnceLock<Nvrtc>,
    modules: Mutex<HashMap<ModuleKey, Module>>,
    known: Mutex<HashMap<Known, Kernel, BuildHasherDefault<Mix>>>,
}

impl Kernels {
    pub(crate) fn new(context: &Arc<Context>, cache: KernelCache) -> Self {
        Self {
            context: context.clone(),
            arch: context.card.arch(),
            cache,
            nvrtc: OnceLock::new(),
            modules: Mutex::new(HashMap::new()),
            known: Mutex::default(),
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
        let key = Known::new(source, defines, entry);
        if let Some(kernel) = key.as_ref().and_then(|key| lock(&self.known).get(key).cloned()) {
            return Ok(kernel);
        }
        if self.context.phase() == Phase::Rehearsing {
            phase::need(Need { source, defines: defines.to_vec(), entry });
            return Ok(Kernel::new(std::ptr::null_mut(), source, entry));
        }
        let kernel = self.find(source, defines, entry)?;
        if let Some(key) = key {
            lock(&self.known).insert(key, kernel.clone());
        }
        Ok(kernel)
    }

    fn find(&self, source: &'static Source, defines: &Defines, entry: &'static str) -> Result<Kernel> {
        let mut modules = lock(&self.modules);
        let module = match modules.entry((source.name, defines.to_vec())) {
            Entry::Occupied(module) => module.into_mut(),
            Entry::Vacant(place) => {
                let (handle, _) = self.load(source, defines)?;
                place.insert(Module { handle, kernels: HashMap::new() })
            }
        };
        if let Some(kernel) = module.kernels.get(entry) {
            return Ok(kernel.clone());
        }
        let name = CString::new(entry).unwrap_or_default();
        let function = self.context.call(
            || format!("looking for kernel {entry} in {}", source.name),
            // SAFETY: the module stays loaded.
            || unsafe { result::module::get_function(module.handle, name) },
        )?;
        let kernel = Kernel::new(function, source, entry);
        module.kernels.insert(entry, kernel.clone());
        Ok(kernel)
    }

    /// Kernels that were looked up so far.
    pub(crate) fn count(&self) -> usize {
        lock(&self.modules).values().map(|module| module.kernels.len()).sum()
    }

    /// Gets kernels ready, those that are to be compiled on several threads; says how many files were compiled. One that
    /// cannot be had costs a warning: its fault is the error of whoever needs it.
    ///
    /// # Errors
    /// Only when the card is lost.
    pub(crate) fn prepare(&self, needs: &[Need]) -> Result<usize> {
        let mut missing: Vec<&Need> = Vec::new();
        {
            let modules = lock(&self.modules);
            for need in needs {
                let own = need.module();
                if !modules.contains_key(&own) && !missing.iter().any(|other| other.module() == own) {
                    missing.push(need);
                }
            }
        }
        let (next, compiled) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let faults = Mutex::new(Vec::new());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Looked for once, not by each thread.
        let _ = self.nvrtc();
        let work = || {
            while let Some(need) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.load(need.source, &need.defines) {
                    Ok((handle, is_new)) => {
                        compiled.fetch_add(usize::from(is_new), Ordering::Relaxed);
                        self.keep(need.module(), handle);
                    }
                    Err(fault) => lock(&faults).push(fault),
                }
            }
        };
        std::thread::scope(|scope| {
            (1..cores.min(COMPILERS).min(missing.len())).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let mut faults = faults.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        for need in needs {
            // Those that could not be loaded are not tried twice.
            if lock(&self.modules).contains_key(&need.module()) {
                faults.extend(self.get(need.source, &need.defines, need.entry).err());
            }
        }
        let count = faults.len();
        if let Some(fault) = faults.into_iter().next() {
            if self.context.lost().is_some() {
                return Err(fault);
            }
            eprintln!(
                "warning: {count} kernels are not ready and will be tried again when they are needed: {fault}"
            );
        }
        Ok(compiled.into_inner())
    }

    /// Keeps a module, unless another thread has loaded the same meanwhile, whose kernels may be in use already.
    fn keep(&self, key: ModuleKey, handle: sys::CUmodule) {
        let twice = match lock(&self.modules).entry(key) {
            Entry::Occupied(_) => true,
            Entry::Vacant(place) => {
                place.insert(Module { handle, kernels: HashMap::new() });
                false
            }
        };
        if twice {
            self.unload(handle);
        }
    }

    /// Loads a variant; says whether it was compiled now.
    fn load(&self, source: &Source, defines: &Defines) -> Result<(sys::CUmodule, bool)> {
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
            return Ok((module, false));
        }
        let nvrtc = nvrtc.map_err(Error::Cuda)?;
        let code = nvrtc.compile(source.name, source.code, &self.arch, &options).map_err(Error::Cuda)?;
        for key in [key, base("any")] {
            if let Err(fault) = self.cache.store(&key, &code) {
                self.warn(&fault);
                break;
            }
        }
        Ok((self.load_code(source, &code)?, true))
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

    fn unload(&self, module: sys::CUmodule) {
        // Kernels in flight are waited for by the driver. Nothing can be done about a fault here.
        // SAFETY: loaded by this; no kernel of it can be launched any more.
        let _ = self.context.call(|| "unloading".into(), || unsafe { result::module::unload(module) });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Drop for Kernels {
    fn drop(&mut self) {
        lock(&self.modules).values().for_each(|module| self.unload(module.handle));
    }
}
