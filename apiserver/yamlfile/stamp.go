package yamlfile

import (
	"os"
	"time"
)

// Stamp tells one writing of a file from another.
type Stamp struct {
	modified time.Time
	size     int64
}

// StampOf is the stamp of a file as it is now; that of one that cannot be seen is like no other's, and whoever reads it
// will say what is wrong.
func StampOf(file string) Stamp {
	fi, err := os.Stat(file)
	if err != nil {
		return Stamp{}
	}
	return Stamp{fi.ModTime(), fi.Size()}
}
