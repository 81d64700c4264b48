package shim

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
)

//go:embed *.go
var sources embed.FS

// SumArg is the hidden argument with which a program that is nothing but a shim tells its Sum.
const SumArg = "sum"

// AsksForSum says whether the arguments of the process ask for the Sum.
func AsksForSum(args []string) bool { return len(args) == 2 && args[1] == SumArg }

// Sum is a checksum of the sources that a program's shim is made of, in hexadecimal digits: two programs with the same are the same shim.
func Sum() string {
	h := sha256.New()
	names, err := fs.Glob(sources, "*.go") // in order
	for _, name := range names {
		var b []byte
		if b, err = sources.ReadFile(name); err != nil {
			break
		}
		h.Write([]byte(name + "\x00"))
		h.Write(b)
	}
	if err != nil {
		panic(err) // what is part of the program can be read
	}
	return hex.EncodeToString(h.Sum(nil))
}
