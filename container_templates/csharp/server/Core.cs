using System;
using System.Runtime.InteropServices;
using System.Text;

namespace Transship
{
    /// <summary>What is to be done with a batch, transship_step.</summary>
    enum Step { Call, Accumulate, Merge, Finish, State, Forget, End, Map, Resume }

    /// <summary>The server core, container_templates/core/include/transship_core.h. Texts are UTF-8 that ends with a zero.</summary>
    static class Core
    {
        const string Library = "transship_core";
        public const int Ok = 0, Nothing = 1, Ended = 2, Unwanted = 3;

        [StructLayout(LayoutKind.Sequential)]
        public struct FunctionInfo
        {
            public IntPtr Name, Kind, Batch, Result, ResultFormat;
            public UIntPtr Arguments;
        }

        [StructLayout(LayoutKind.Sequential)]
        public struct WorkInfo
        {
            public UIntPtr Function;
            public Step Step;
            public int RowErrors;
            public ulong Exchange;
            public UIntPtr Rows;
        }

        /// <summary>A plain column: bits, int64, doubles, or bytes with offsets of int32.</summary>
        [StructLayout(LayoutKind.Sequential)]
        public struct Column
        {
            public byte Format;
            public IntPtr Validity, Values, Bytes;
        }

        [StructLayout(LayoutKind.Sequential)]
        struct FieldInfo
        {
            public IntPtr Name, Type;
            public byte Format;
            public int Key;
        }

        [StructLayout(LayoutKind.Sequential)]
        struct RowsInfo
        {
            public UIntPtr Rows;
            public IntPtr Validity, Positions;
        }

        /// <summary>A shared table that is open. A thread that uses it keeps it open meanwhile.</summary>
        public sealed class TableHandle : SafeHandle
        {
            public TableHandle(IntPtr table) : base(IntPtr.Zero, true)
            {
                SetHandle(table);
            }

            public override bool IsInvalid { get { return handle == IntPtr.Zero; } }

            protected override bool ReleaseHandle()
            {
                transship_table_close(handle);
                return true;
            }
        }

        /// <summary>Rows of a shared table.</summary>
        public sealed class RowsHandle : SafeHandle
        {
            long bytes;

            public RowsHandle(IntPtr rows) : base(IntPtr.Zero, true)
            {
                SetHandle(rows);
            }

            /// <summary>Tells the collector, for which the rows wait, about how large they are.</summary>
            public void HasBytes(long size)
            {
                bytes = size;
                if (bytes > 0) GC.AddMemoryPressure(bytes);
            }

            public override bool IsInvalid { get { return handle == IntPtr.Zero; } }

            protected override bool ReleaseHandle()
            {
                transship_rows_free(handle);
                if (bytes > 0) GC.RemoveMemoryPressure(bytes);
                return true;
            }
        }

        [DllImport(Library)]
        static extern IntPtr transship_message();

        [DllImport(Library)]
        static extern int transship_server_new(byte[] config, out IntPtr server);

        [DllImport(Library)]
        static extern UIntPtr transship_server_functions(IntPtr server);

        [DllImport(Library)]
        static extern int transship_server_function(IntPtr server, UIntPtr number, out FunctionInfo function);

        [DllImport(Library)]
        static extern UIntPtr transship_server_concurrency(IntPtr server, UIntPtr number);

        [DllImport(Library)]
        static extern int transship_work_next_columns(IntPtr work, long timeoutMs, out UIntPtr rows);

        [DllImport(Library)]
        static extern int transship_server_describe(IntPtr server, UIntPtr[] merging, UIntPtr count, out IntPtr text);

        [DllImport(Library)]
        static extern void transship_text_free(IntPtr text);

        [DllImport(Library)]
        static extern int transship_server_start(IntPtr server);

        [DllImport(Library)]
        static extern int transship_next(IntPtr server, long timeoutMs, out IntPtr work);

        [DllImport(Library)]
        static extern int transship_work_info_of(IntPtr work, out WorkInfo info);

        [DllImport(Library)]
        static extern UIntPtr transship_work_columns(IntPtr work);

        [DllImport(Library)]
        static extern int transship_work_column(IntPtr work, UIntPtr number, out Column column);

        [DllImport(Library)]
        static extern int transship_work_is_cancelled(IntPtr work);

        [DllImport(Library)]
        static extern int transship_work_part_columns(IntPtr work, UIntPtr rows, Column[] columns, UIntPtr count);

        [DllImport(Library)]
        static extern int transship_work_answer_columns(IntPtr work, UIntPtr rows, Column[] columns, UIntPtr count);

        [DllImport(Library)]
        static extern int transship_work_fail(IntPtr work, byte[] kind, byte[] message, byte[] traceback, long row);

        [DllImport(Library)]
        static extern int transship_work_has_tables(IntPtr work);

        [DllImport(Library)]
        static extern int transship_work_table(IntPtr work, byte[] name, out IntPtr table);

        [DllImport(Library)]
        static extern void transship_table_close(IntPtr table);

        [DllImport(Library)]
        static extern long transship_table_rows(TableHandle table);

        [DllImport(Library)]
        static extern UIntPtr transship_table_batches(TableHandle table);

        [DllImport(Library)]
        static extern UIntPtr transship_table_fields(TableHandle table);

        [DllImport(Library)]
        static extern int transship_table_field(TableHandle table, UIntPtr number, out FieldInfo field);

        [DllImport(Library)]
        static extern int transship_table_lookup_columns(TableHandle table, UIntPtr rows, Column[] keys, UIntPtr count, int all, out IntPtr found);

        [DllImport(Library)]
        static extern int transship_table_batch_columns(TableHandle table, UIntPtr number, out IntPtr rows);

        [DllImport(Library)]
        static extern int transship_rows_info_of(RowsHandle rows, out RowsInfo info);

        [DllImport(Library)]
        static extern int transship_rows_column(RowsHandle rows, UIntPtr number, out Column column);

        [DllImport(Library)]
        static extern void transship_rows_free(IntPtr rows);

        static byte[] ToUtf8(string text)
        {
            return text == null ? null : Encoding.UTF8.GetBytes(text + "\0");
        }

        static string FromUtf8(IntPtr text)
        {
            var length = 0;
            while (Marshal.ReadByte(text, length) != 0) length++;
            var bytes = new byte[length];
            Marshal.Copy(text, bytes, 0, length);
            return Encoding.UTF8.GetString(bytes);
        }

        static void Check(int status)
        {
            if (status < 0) throw new InvalidOperationException(FromUtf8(transship_message()));
        }

        public static IntPtr NewServer(string config)
        {
            IntPtr server;
            Check(transship_server_new(ToUtf8(config), out server));
            return server;
        }

        public static int Functions(IntPtr server)
        {
            return (int)transship_server_functions(server);
        }

        /// <summary>The format of a function's column of results.</summary>
        public static char ResultFormat(IntPtr server, int number)
        {
            FunctionInfo info;
            Check(transship_server_function(server, (UIntPtr)number, out info));
            return FromUtf8(info.ResultFormat)[0];
        }

        /// <summary>How many calls of a batch may be under way at a time.</summary>
        public static int Concurrency(IntPtr server, int number)
        {
            return (int)transship_server_concurrency(server, (UIntPtr)number);
        }

        /// <summary>
        /// Waits for the next batch of a map function's stream; null after the last. False if there is none in time, after which work of step
        /// Resume comes once there is. A negative time is as long as it takes.
        /// </summary>
        public static bool NextColumns(IntPtr work, long timeoutMs, out int rows, out GivenColumn[] columns)
        {
            UIntPtr count;
            var status = transship_work_next_columns(work, timeoutMs, out count);
            Check(status);
            rows = (int)count;
            if (status == Unwanted) throw new Cancelled();
            columns = status == Ok ? Columns(work, rows) : null;
            return status != Nothing;
        }

        public static string Describe(IntPtr server, UIntPtr[] merging)
        {
            IntPtr text;
            Check(transship_server_describe(server, merging, (UIntPtr)merging.Length, out text));
            var described = FromUtf8(text);
            transship_text_free(text);
            return described;
        }

        public static void Start(IntPtr server)
        {
            Check(transship_server_start(server));
        }

        public static int Next(IntPtr server, long timeoutMs, out IntPtr work)
        {
            var status = transship_next(server, timeoutMs, out work);
            Check(status);
            return status;
        }

        public static WorkInfo Info(IntPtr work)
        {
            WorkInfo info;
            Check(transship_work_info_of(work, out info));
            return info;
        }

        public static GivenColumn[] Columns(IntPtr work, int rows)
        {
            var columns = new GivenColumn[(int)transship_work_columns(work)];
            for (var i = 0; i < columns.Length; i++)
            {
                Column column;
                Check(transship_work_column(work, (UIntPtr)i, out column));
                columns[i] = new GivenColumn(column, rows);
            }
            return columns;
        }

        public static bool IsCancelled(IntPtr work)
        {
            return transship_work_is_cancelled(work) != 0;
        }

        /// <summary>Gives a part of a reply; false if nobody waits for it.</summary>
        public static bool Part(IntPtr work, int rows, Column[] columns)
        {
            var status = transship_work_part_columns(work, (UIntPtr)rows, columns, (UIntPtr)columns.Length);
            Check(status);
            return status == Ok;
        }

        /// <summary>Ends work. If the reply cannot be read, the client gets an error.</summary>
        public static void Answer(IntPtr work, int rows, Column[] columns)
        {
            transship_work_answer_columns(work, (UIntPtr)rows, columns, (UIntPtr)columns.Length);
        }

        /// <summary>Whether the caller has given tables to the work.</summary>
        public static bool HasTables(IntPtr work)
        {
            return transship_work_has_tables(work) != 0;
        }

        public static TableHandle OpenTable(IntPtr work, string name)
        {
            IntPtr table;
            Check(transship_work_table(work, ToUtf8(name), out table));
            return new TableHandle(table);
        }

        public static long Rows(TableHandle table)
        {
            return transship_table_rows(table);
        }

        public static int Batches(TableHandle table)
        {
            return (int)transship_table_batches(table);
        }

        public static int Fields(TableHandle table)
        {
            return (int)transship_table_fields(table);
        }

        /// <summary>A column of a table; key is its position among the key's columns, or below zero.</summary>
        public static void Field(TableHandle table, int number, out string name, out string type, out char format, out int key)
        {
            FieldInfo field;
            Check(transship_table_field(table, (UIntPtr)number, out field));
            name = FromUtf8(field.Name);
            type = FromUtf8(field.Type);
            format = (char)field.Format;
            key = field.Key;
        }

        /// <summary>One row per key, or all rows of all keys.</summary>
        public static RowsHandle Find(TableHandle table, int keys, Column[] columns, bool all)
        {
            IntPtr rows;
            Check(transship_table_lookup_columns(table, (UIntPtr)keys, columns, (UIntPtr)columns.Length, all ? 1 : 0, out rows));
            return new RowsHandle(rows);
        }

        public static RowsHandle Batch(TableHandle table, int number)
        {
            IntPtr rows;
            Check(transship_table_batch_columns(table, (UIntPtr)number, out rows));
            return new RowsHandle(rows);
        }

        /// <summary>How many rows there are; bits of which 0 is a key without a row, or null; the position of each row's key, or null.</summary>
        public static int RowsOf(RowsHandle rows, out byte[] validity, out int[] positions)
        {
            RowsInfo info;
            Check(transship_rows_info_of(rows, out info));
            var count = (int)info.Rows;
            validity = null;
            positions = null;
            if (info.Validity != IntPtr.Zero)
            {
                validity = new byte[(count + 7) / 8];
                Marshal.Copy(info.Validity, validity, 0, validity.Length);
            }
            if (info.Positions != IntPtr.Zero)
            {
                positions = new int[count];
                Marshal.Copy(info.Positions, positions, 0, count);
            }
            GC.KeepAlive(rows);
            return count;
        }

        public static GivenColumn ColumnOf(RowsHandle rows, int number, int count)
        {
            Column column;
            Check(transship_rows_column(rows, (UIntPtr)number, out column));
            var copy = new GivenColumn(column, count);
            GC.KeepAlive(rows);
            return copy;
        }

        public static void Fail(IntPtr work, CallError error)
        {
            transship_work_fail(work, ToUtf8(error.Kind), ToUtf8(error.Message), ToUtf8(error.Traceback), error.Row ?? -1);
        }
    }
}
