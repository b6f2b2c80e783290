using System;

/// <summary>Starts the server: server.exe [serve | describe].</summary>
public static class Program
{
    public static int Main(string[] arguments)
    {
        // The handler is compiled into this assembly.
        return Transship.Server.Run(typeof(Program).Assembly, arguments.Length > 0 ? arguments[0] : "serve");
    }
}
