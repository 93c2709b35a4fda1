//! One operation at a time: the device's stream, and the account of what operations take.

#[cfg(feature = "nccl")]
use std::sync::Arc;
use std::time::Duration;

use super::{Backend, Device, lock};
use crate::later::Coming;
use crate::profile::{Family, OpProfile, Work};
use crate::{Ceilings, Result, Tensor};

impl Device {
    /// See [`Backend::copy_later`].
    pub(crate) fn copy_later(&self, tensor: &Tensor) -> Result<Option<Box<dyn Coming<i32>>>> {
        self.inner.backend.copy_later(tensor)
    }

    /// See [`Backend::copy_aside`].
    pub(crate) fn copy_aside(&self, tensor: &Tensor) -> Result<Option<Box<dyn Coming<f32>>>> {
        self.inner.backend.copy_aside(tensor)
    }

    /// Whether it runs behind its callers, so that it pays to read the ids of one step while the next one runs.
    pub fn runs_behind(&self) -> bool {
        self.inner.backend.runs_behind()
    }

    /// Tokens of prompts that occupy it: a step of more gains little.
    pub fn tokens_of_a_step(&self) -> usize {
        self.inner.backend.tokens_of_a_step()
    }

    /// See [`Backend::copy_from_peer`]; for tensors of this device.
    pub(crate) fn copy_from_peer(&self, from: &Tensor, to: &Tensor) -> Option<Result<()>> {
        self.exclusive(from.span_bytes(), || self.inner.backend.copy_from_peer(from, to))
    }

    /// Counts operations and their time from now on, or no longer; see [`take_profile`](Self::take_profile). Devices that run
    /// behind their callers count by a clock of their own.
    pub fn profile(&self, on: bool) {
        let _stream = lock(&self.inner.stream);
        let clock = self.inner.backend.clock();
        // A card that is lost, or without the kernels for it, has the host's clock: slow, but an account.
        let by_clock = clock.is_some_and(|clock| clock.switch(on).is_ok()) && on;
        self.inner.profile.switch(on, by_clock);
    }

    /// What operations took since [`profile`](Self::profile) was switched on or this was last called, the longest
    /// first.
    pub fn take_profile(&self) -> Vec<OpProfile> {
        let _stream = lock(&self.inner.stream);
        let clock = self.inner.backend.clock().filter(|_| self.inner.profile.is_by_clock());
        // Of a card that is lost there are no times.
        let timed = clock.and_then(|clock| clock.read().ok()).unwrap_or_default();
        self.inner.profile.take(timed)
    }

    /// While operations are counted by a clock of the device's own: what a kernel that does nothing takes by it. Times are
    /// less by that for each kernel.
    pub fn profile_overhead(&self) -> Option<Duration> {
        let clock = self.inner.backend.clock().filter(|_| self.inner.profile.is_by_clock())?;
        Some(clock.empty())
    }

    /// Measures what a card could do at most, in less than a second; `None` for devices that compute in the host's memory
    /// ([`bandwidth`](crate::bandwidth) and [`compute`](crate::compute) measure those).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) with less than 64 MiB free, [`Error::Cuda`](crate::Error::Cuda).
    pub fn ceilings(&self) -> Result<Option<Ceilings>> {
        let _stream = lock(&self.inner.stream);
        self.inner.backend.ceilings().transpose()
    }

    /// Runs one operation: waits for the device's stream, then hands the backend over. `work` is asked for only
    /// while operations are counted.
    pub(crate) fn run<T>(
        &self,
        family: Family,
        op: &'static str,
        work: impl FnOnce() -> Work,
        operation: impl FnOnce(&dyn Backend) -> T,
    ) -> T {
        let _stream = lock(&self.inner.stream);
        self.inner.profile.time(self.inner.backend.clock(), family, op, work, || {
            let result = operation(&*self.inner.backend);
            if self.inner.profile.is_on() && !self.inner.profile.is_by_clock() {
                self.inner.backend.finish();
            }
            result
        })
    }

    /// Keeps operations away while host code copies so many bytes.
    pub(crate) fn exclusive<T>(&self, bytes: usize, copy: impl FnOnce() -> T) -> T {
        let _stream = lock(&self.inner.stream);
        let work = || Work::default().bytes(bytes);
        self.inner.profile.time(self.inner.backend.clock(), Family::Transfer, "copy", work, copy)
    }

    /// Runs one operation of several devices, which moves so many bytes on each, while no other runs on any of them.
    #[cfg(feature = "nccl")]
    pub(crate) fn together(
        devices: &[Device],
        op: &'static str,
        bytes: usize,
        mut operation: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        // In an order of their own, so that nobody has what another one waits for.
        let mut ordered: Vec<&Device> = devices.iter().collect();
        ordered.sort_by_key(|device| Arc::as_ptr(&device.inner) as usize);
        Self::within(&ordered, op, bytes, &mut operation)
    }

    #[cfg(feature = "nccl")]
    fn within(
        devices: &[&Device],
        op: &'static str,
        bytes: usize,
        operation: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let Some((first, others)) = devices.split_first() else { return operation() };
        let _stream = lock(&first.inner.stream);
        let work = || Work::default().bytes(bytes);
        let rest = || Self::within(others, op, bytes, operation);
        first.inner.profile.time(first.inner.backend.clock(), Family::Transfer, op, work, rest)
    }
}
