//go:build requirements

// Package crio has what `make e2e-crio` builds among its requirements: CRI-O, as it is. Nothing is ever built with this tag.
package crio

import _ "github.com/cri-o/cri-o/cmd/crio"
