using System;
using System.Globalization;
using System.IO;
using System.Net;
using System.Net.Sockets;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;

namespace Transship
{
    /// <summary>A request: what it asks for, and whether its client has gone meanwhile.</summary>
    sealed class HttpRequest
    {
        public string Method;
        public string Path;
        public string ContentType;
        public byte[] Body;
        public Func<bool> IsCancelled;
    }

    /// <summary>Status and body of an answer.</summary>
    struct HttpReply
    {
        public int Status;
        public string ContentType;
        public byte[] Body;

        /// <summary>An answer in JSON.</summary>
        public static HttpReply Json(int status, string text)
        {
            return new HttpReply { Status = status, ContentType = "application/json", Body = Encoding.UTF8.GetBytes(text) };
        }
    }

    /// <summary>As much of an HTTP/1.1 server as docs/protocol.md §6 asks for: Mono's own has no Unix sockets.</summary>
    sealed class HttpServer
    {
        const int MaxBodyBytes = 1 << 30;
        const int MaxLineBytes = 64 << 10;
        /// <summary>Connections at a time; a container has 128 threads, and what comes on top waits.</summary>
        const int MaxConnections = 96;
        readonly Func<HttpRequest, HttpReply> answer;
        readonly SemaphoreSlim room = new SemaphoreSlim(MaxConnections);
        int running;

        public HttpServer(Func<HttpRequest, HttpReply> answer)
        {
            this.answer = answer;
        }

        /// <summary>Requests that are being answered.</summary>
        public int Running { get { return Volatile.Read(ref running); } }

        public void Listen(EndPoint place)
        {
            var listener = new Socket(place.AddressFamily, SocketType.Stream, ProtocolType.Unspecified);
            listener.Bind(place);
            listener.Listen(128);
            new Thread(() =>
            {
                while (true)
                {
                    room.Wait();
                    var socket = listener.Accept();
                    if (place is IPEndPoint) socket.NoDelay = true;
                    new Thread(() =>
                    {
                        try
                        {
                            Serve(socket);
                        }
                        finally
                        {
                            room.Release();
                        }
                    }) { IsBackground = true }.Start();
                }
            }) { IsBackground = true }.Start();
        }

        void Serve(Socket socket)
        {
            using (socket)
            using (var network = new NetworkStream(socket))
            // Only for reading: the next request may be in it already while an answer is written.
            using (var stream = new BufferedStream(network, 64 << 10))
            {
                try
                {
                    while (ServeOne(socket, network, stream)) { }
                }
                catch (IOException)
                {
                    // The client has gone.
                }
            }
        }

        bool ServeOne(Socket socket, Stream network, Stream stream)
        {
            var line = ReadLine(stream);
            if (string.IsNullOrEmpty(line)) return false;
            var words = line.Split(' ');
            long length = 0;
            var isRight = words.Length == 3;
            var expects = false;
            string contentType = null;
            while (!string.IsNullOrEmpty(line = ReadLine(stream)))
            {
                var colon = line.IndexOf(':');
                var name = colon < 0 ? "" : line.Substring(0, colon).Trim().ToLowerInvariant();
                var value = line.Substring(colon + 1).Trim();
                if (name == "content-length") isRight &= long.TryParse(value, NumberStyles.None, CultureInfo.InvariantCulture, out length);
                if (name == "content-type") contentType = value;
                // A body of pieces is not read.
                if (name == "transfer-encoding") isRight = false;
                if (name == "expect") expects = true;
            }
            if (!isRight || length > MaxBodyBytes)
            {
                Reply(network, HttpReply.Json(400, "{\"error\":{\"kind\":\"protocol_violation\",\"message\":\"a request needs a Content-Length of at most 1 GiB\"}}"));
                return false;
            }
            if (expects)
            {
                var go = Encoding.ASCII.GetBytes("HTTP/1.1 100 Continue\r\n\r\n");
                network.Write(go, 0, go.Length);
            }
            var body = new byte[length];
            for (int read, at = 0; at < length; at += read)
            {
                read = stream.Read(body, at, body.Length - at);
                if (read == 0) return false;
            }
            Interlocked.Increment(ref running);
            try
            {
                var request = new HttpRequest { Method = words[0], Path = words[1], ContentType = contentType, Body = body, IsCancelled = () => HasGone(socket) };
                Reply(network, answer(request));
            }
            catch (Cancelled)
            {
                return false;
            }
            finally
            {
                Interlocked.Decrement(ref running);
            }
            return true;
        }

        [StructLayout(LayoutKind.Sequential)]
        struct Watched
        {
            public int Descriptor;
            public short Events, Found;
        }

        [DllImport("libc", EntryPoint = "poll")]
        static extern int Poll([In, Out] Watched[] watched, UIntPtr count, int milliseconds);

        /// <summary>Whether the client has closed its connection, whatever else it has sent before.</summary>
        static bool HasGone(Socket socket)
        {
            // POLLRDHUP, which .NET has no name for.
            return Poll(new[] { new Watched { Descriptor = (int)socket.Handle, Events = 0x2000 } }, (UIntPtr)1, 0) > 0;
        }

        static string ReadLine(Stream stream)
        {
            var line = new StringBuilder();
            while (line.Length < MaxLineBytes)
            {
                var next = stream.ReadByte();
                if (next < 0) return null;
                if (next == '\n') return line.ToString().TrimEnd('\r');
                line.Append((char)next);
            }
            return null;
        }

        static void Reply(Stream stream, HttpReply reply)
        {
            var head = Encoding.ASCII.GetBytes("HTTP/1.1 " + reply.Status + (reply.Status == 200 ? " OK" : " Error") + "\r\nContent-Type: " + reply.ContentType + "\r\nContent-Length: " + reply.Body.Length + "\r\n\r\n");
            // In one piece, so that a short body does not wait for the other side to have seen the head.
            var bytes = new byte[head.Length + reply.Body.Length];
            head.CopyTo(bytes, 0);
            reply.Body.CopyTo(bytes, head.Length);
            stream.Write(bytes, 0, bytes.Length);
        }
    }

#if NET
    // .NET has one of its own.
#else
    /// <summary>The address of a Unix socket: two bytes of family, then the path and a zero.</summary>
    sealed class UnixDomainSocketEndPoint : EndPoint
    {
        readonly string path;

        public UnixDomainSocketEndPoint(string path)
        {
            this.path = path;
        }

        public override AddressFamily AddressFamily { get { return AddressFamily.Unix; } }

        public override SocketAddress Serialize()
        {
            var bytes = Encoding.UTF8.GetBytes(path);
            var address = new SocketAddress(AddressFamily.Unix, bytes.Length + 3);
            for (var i = 0; i < bytes.Length; i++) address[i + 2] = bytes[i];
            address[bytes.Length + 2] = 0;
            return address;
        }

        public override EndPoint Create(SocketAddress address)
        {
            return new UnixDomainSocketEndPoint("");
        }
    }
#endif
}
