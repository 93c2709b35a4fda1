//! Model architectures on packed weights, one file a family.
