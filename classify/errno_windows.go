package classify

import "syscall"

// systemErrnos is what one system has beyond commonErrnos. On Windows the
// sockets report the numbers of Winsock, not the names of package syscall.
var systemErrnos = []errnoRow{
	{transient, []errno{
		{10004, "WSAEINTR"},
		{10035, "WSAEWOULDBLOCK"},
		{10050, "WSAENETDOWN"},
		{10051, "WSAENETUNREACH"},
		{syscall.WSAECONNABORTED, "WSAECONNABORTED"},
		{10061, "WSAECONNREFUSED"},
		{10064, "WSAEHOSTDOWN"},
		{10065, "WSAEHOSTUNREACH"},
		{32, "ERROR_SHARING_VIOLATION"},
	}},
	{ambiguous, []errno{
		{10052, "WSAENETRESET"},
		{syscall.WSAECONNRESET, "WSAECONNRESET"},
		{10060, "WSAETIMEDOUT"},
		{syscall.ERROR_NETNAME_DELETED, "ERROR_NETNAME_DELETED"},
		{syscall.ERROR_BROKEN_PIPE, "ERROR_BROKEN_PIPE"},
	}},
	{environment, []errno{
		{syscall.WSAEACCES, "WSAEACCES"},
		{10024, "WSAEMFILE"},
		{10049, "WSAEADDRNOTAVAIL"},
		{10055, "WSAENOBUFS"},
		{syscall.ERROR_ACCESS_DENIED, "ERROR_ACCESS_DENIED"},
		{4, "ERROR_TOO_MANY_OPEN_FILES"},
		{8, "ERROR_NOT_ENOUGH_MEMORY"},
		{19, "ERROR_WRITE_PROTECT"},
		{39, "ERROR_HANDLE_DISK_FULL"},
		{112, "ERROR_DISK_FULL"},
	}},
}
