//! Tile registers in portable Rust, as Intel's manual describes them, for machines without AMX.

use std::cell::RefCell;

use super::LANES;
use super::tiles::{Shapes, Tiles};

/// Bytes of a row of a register, and its rows.
const ROW_BYTES: usize = 64;
const ROWS: usize = 16;

/// The registers of a thread.
struct Registers {
    /// `[rows, bytes of a row]`; `None` before tiles are configured and after they are released.
    shapes: Option<[[usize; 2]; 8]>,
    tiles: [[[u8; ROW_BYTES]; ROWS]; 8],
}

thread_local! {
    static REGISTERS: RefCell<Registers> =
        const { RefCell::new(Registers { shapes: None, tiles: [[[0; ROW_BYTES]; ROWS]; 8] }) };
}

impl Registers {
    fn shape(&self, tile: usize) -> [usize; 2] {
        self.shapes.expect("tiles are used after they are configured")[tile]
    }

    fn word(&self, tile: usize, row: usize, word: usize) -> [u8; 4] {
        self.tiles[tile][row][4 * word..][..4].try_into().expect("four bytes")
    }
}

/// See above.
pub(in super::super) struct Double;

impl Tiles for Double {
    unsafe fn configure(shapes: &Shapes) {
        REGISTERS.with_borrow_mut(|registers| {
            assert!(registers.shapes.is_none());
            let shapes: [[usize; 2]; 8] =
                std::array::from_fn(|i| [shapes.rows[i].into(), shapes.row_bytes[i].into()]);
            assert!(
                shapes
                    .iter()
                    .all(|[rows, bytes]| (1..=ROWS).contains(rows) && (4..=ROW_BYTES).contains(bytes))
            );
            registers.shapes = Some(shapes);
            registers.tiles = [[[0; ROW_BYTES]; ROWS]; 8];
        });
    }

    unsafe fn release() {
        REGISTERS.with_borrow_mut(|registers| assert!(registers.shapes.take().is_some()));
    }

    unsafe fn load<const TILE: usize>(from: *const u8, stride: usize) {
        REGISTERS.with_borrow_mut(|registers| {
            let [rows, bytes] = registers.shape(TILE);
            registers.tiles[TILE] = [[0; ROW_BYTES]; ROWS];
            for row in 0..rows {
                // SAFETY: promised by the caller.
                let values = unsafe { std::slice::from_raw_parts(from.add(row * stride), bytes) };
                registers.tiles[TILE][row][..bytes].copy_from_slice(values);
            }
        });
    }

    unsafe fn zero<const TILE: usize>() {
        REGISTERS.with_borrow_mut(|registers| registers.tiles[TILE] = [[0; ROW_BYTES]; ROWS]);
    }

    unsafe fn multiply<const SUMS: usize, const COLUMNS: usize, const WEIGHTS: usize>() {
        REGISTERS.with_borrow_mut(|registers| {
            let ([rows, k_bytes], [k_rows, bytes]) = (registers.shape(COLUMNS), registers.shape(WEIGHTS));
            assert_eq!([rows, bytes], registers.shape(SUMS));
            assert_eq!(k_bytes, 4 * k_rows);
            for m in 0..rows {
                for n in 0..bytes / 4 {
                    let mut sum = i32::from_le_bytes(registers.word(SUMS, m, n));
                    for k in 0..k_rows {
                        let pairs =
                            registers.word(COLUMNS, m, k).into_iter().zip(registers.word(WEIGHTS, k, n));
                        sum += pairs.map(|(a, b)| i32::from(a as i8) * i32::from(b as i8)).sum::<i32>();
                    }
                    registers.tiles[SUMS][m][4 * n..][..4].copy_from_slice(&sum.to_le_bytes());
                }
            }
        });
    }

    unsafe fn store<const TILE: usize>(to: *mut i32) {
        REGISTERS.with_borrow(|registers| {
            let [rows, bytes] = registers.shape(TILE);
            for (row, values) in registers.tiles[TILE][..rows].iter().enumerate() {
                // SAFETY: promised by the caller.
                unsafe {
                    let to = to.add(row * LANES).cast::<u8>();
                    std::ptr::copy_nonoverlapping(values.as_ptr(), to, bytes);
                }
            }
        });
    }
}
