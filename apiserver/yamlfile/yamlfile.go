// Package yamlfile reads files of Kubernetes' configuration kinds: all of what stands in them
// or nothing, and it says in which line a mistake is. It must never read without a bound.
package yamlfile

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// MaxBytes bounds a file.
const MaxBytes = 4 << 20

// Read decodes a file into the scheme's internal type. A field that nobody knows is a mistake. What the file
// holds is returned for Placed.
func Read(file string, scheme *runtime.Scheme) (runtime.Object, []byte, error) {
	fi, err := os.Stat(file)
	if err != nil {
		return nil, nil, err
	}
	if fi.Size() > MaxBytes {
		return nil, nil, fmt.Errorf("%s has %d bytes, and may have %d", file, fi.Size(), MaxBytes)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	o, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, nil, Placed(file, data, err)
	}
	return o, data, nil
}
