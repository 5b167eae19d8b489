"""Files on disk and in object storage: atomic writes, CSV, mirrors and leases."""
