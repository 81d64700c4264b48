// Package sim lets whole clusters live in one process and in virtual time: real
// servers and workers over a network, disks and clocks that fail, with users as
// kubectl and controllers are, and a checker that looks at everything that they
// show. All of it follows from one seed.
//
// It is run by its tests (TestSeeds), in processes of their own. Built with the
// patches of package overlay, a seed gives the same world again, to the byte.
//
// What it needs of the product are parameters that the product has anyway. It must
// never be imported by anything.
package sim
